"""Evaluates models, and saves and compares evaluations.

settings.py    the settings of an evaluation: from a configuration, or from the run beside a model
run.py         sample and verify, one part of the problems at a time
progress.py    the progress of an evaluation, for a display
folder.py      where rows and metrics are written, and from where an interrupted evaluation resumes
result.py      the result of one task: metrics, and their intervals over problems
comparison.py  two models on the same problems
evaluate.py    all of it in one call, for `winnow eval` and `winnow.evaluate`
text.py        results and comparisons as text
"""
