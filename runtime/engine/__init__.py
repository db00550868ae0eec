"""The decode engine: requests in, tokens out."""
