"""The `tandem` command: arguments, output and exit codes. One module per subcommand, loaded when it is called."""
