"""The page of `winnow report`: its data, which is built here, and the files for the browser."""
