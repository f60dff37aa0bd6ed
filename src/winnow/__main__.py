"""`python -m winnow` is `winnow`."""

from winnow.commands import main

main()
