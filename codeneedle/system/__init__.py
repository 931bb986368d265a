"""The operating system: processes, signals, files, the machine."""
