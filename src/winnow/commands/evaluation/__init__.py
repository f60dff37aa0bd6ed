"""`winnow eval`: evaluate a model on one or more tasks, resume, and compare with another model.

questions.py          the tasks, and the prompt and reward of each
evaluation_folder.py  where rows and metrics are written, and from where an interrupted evaluation resumes
sampling_run.py       sample and verify, one part of the problems at a time
measured.py           the result of one task: metrics, and their intervals over problems
several_tasks.py      averages over the published benchmarks
against.py            two models on the same problems
evaluation_report.py  all of it as text
"""
