"""`python -m selfmark` is the same as `selfmark`."""

from selfmark.cli import main

if __name__ == "__main__":
    main()
