"""`python -m selfmark` is the same as `selfmark`."""

from selfmark.cli.entry import main

if __name__ == "__main__":
    main()
