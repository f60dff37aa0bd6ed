"""The page of `winnow report`: its data, built here, and the files that a browser reads."""
