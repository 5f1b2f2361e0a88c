"""`python -m netem`."""

from netem.cli import main

if __name__ == "__main__":
    main()
