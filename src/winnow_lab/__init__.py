"""Compare, measure and check runs. The laboratory looks at runs and machines when they are done.

Each command is an entry point of the group "winnow.commands", and each reader of another trainer's logs one of
"winnow.logs", as a package of yours would add them (pyproject.toml). The laboratory imports winnow, and winnow imports
nothing of it.
"""
