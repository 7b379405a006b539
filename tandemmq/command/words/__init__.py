"""The words of the command line: which commands there are, and the options of each. Nothing here does anything."""
