"""The documentation site: Markdown generated from the library and the store, built by mkdocs into static pages."""
