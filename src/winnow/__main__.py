"""`python -m winnow` is `winnow`."""

from winnow.cli import main

main()
