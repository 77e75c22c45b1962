"""`python -m headrace`: the command line."""

from headrace.deploy.cli.main import main

if __name__ == "__main__":
    main()
