"""Evaluations that are written: the lines of their files, and two of them beside each other.

rollout_lines.py      a judged rollout as a line of JSON, and back
saved_evaluation.py   what an evaluation's folder holds, checked as it is read
shared_frame.py       a prompt without the template that all prompts share
comparison.py         two models on the same problems, which `winnow eval` prints and `winnow report` shows
compared_folders.py   the same of two folders
"""
