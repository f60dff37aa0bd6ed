"""`winnow eval`: a model on one task or several, resumable, and beside another model.

questions.py          which tasks, and how each is asked and paid
evaluation_folder.py  where lines and numbers are written, and where an interrupted evaluation goes on
sampling_run.py       the model asked, a part of the problems at a time
measured.py           what came of one task: metrics, and their intervals over problems
several_tasks.py      averages over the published benchmarks
against.py            two models on the same problems
evaluation_report.py  all of it in text
"""
