"""The command line. One module a command; a module is imported when its command runs."""
