"""Paged key/value memory.

Who owns what: the scheduler alone asks ``BlockAllocator`` for blocks and ``HostBlocks`` for swap space, and stores
what it got in a request's ``blocks`` or ``host_blocks``. ``KVPool`` owns the memory behind device blocks, ``SwapSpace``
the memory behind host blocks; neither knows who uses a block. Only the executor copies between them, in the order
the scheduler wrote into the step.
"""
