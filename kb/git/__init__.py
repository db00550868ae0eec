"""Reading the library's history: revisions, snapshots of the library, and the versions of one entry."""
