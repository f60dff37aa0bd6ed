"""One training step and the loop around it, in the words of the papers: start reading at step.py.

step.py         one step, from the plan to the log
loop.py         the steps of a run, with evaluations and checkpoints between them
plan.py         which prompts come next, and how many rollouts each gets; a probe measures first
draw.py         the prompts of a run, and the sampler's draw of the next ones
sample.py       the rollouts of a step: now or one step ahead, in rounds, with further prompts
collect.py      samples and judges a list of prompts on all ranks; hands weights to the engine
cuts.py         the ends of rollouts that the rule `cut` cuts
select.py       which rollouts are trained on
critic.py       values, returns and the updates of a value model
batches.py      weights, and the rollouts of each optimizer step
tally.py        what a step measures while it runs
mismatch.py     the engine's log-probs compared with the policy's, and what a correction did
metrics.py      the metrics of groups and batches
run.py          a run, in two parts: what is fixed, and what moves
members.py      the functions that a configuration names
protocols.py    what a step needs of learner, verifiers, logs, alarms and checkpoints
progress.py     the training clock, phases, and work in threads
events.py       what a run passes to its watch
saving.py, stop_signals.py, evaluation.py, named_rollouts.py    what happens between two steps
"""
