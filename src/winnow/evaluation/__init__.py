"""Saved evaluations: the lines of their files, and comparisons of two of them.

rollout_lines.py      a judged rollout as a line of JSON, and back
saved_evaluation.py   the contents of an evaluation's folder, checked when they are read
shared_frame.py       a prompt without the template that all prompts share
comparison.py         two models on the same problems, for `winnow eval` and `winnow report`
compared_folders.py   the comparison of two folders
"""
