"""``python -m validator.worker DESCRIPTOR``: serve one judge over the socket inherited as DESCRIPTOR."""

from __future__ import annotations

import sys

from validator.worker.supervisor import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
