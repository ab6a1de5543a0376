"""Run the command line with `python -m selfmark`."""

from selfmark.cli.entry import main

if __name__ == "__main__":
    main()
