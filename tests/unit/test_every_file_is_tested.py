"""Every source file has a test of its name, or stands in one table with the test that covers it."""

from __future__ import annotations

from pathlib import Path

import winnow

SOURCE = Path(winnow.__file__).parent
LAB = SOURCE.parent / "winnow_lab"
TESTS = Path(__file__).parents[1]
# The test file that covers source files, where none has their names
COVERS = """
contract/test_engine_contract.py: engines/base.py engines/hf.py engines/hf_generate.py engines/scripted.py
contract/test_engine_contract.py: engines/native/engine.py engines/native/rows.py engines/native/sampler.py
contract/test_environment_contract.py: environments/contract.py
contract/test_law_contracts.py: testing.py
contract/test_reward_contract.py: rewards/contract.py
e2e/test_eval_command.py: commands/eval.py evaluation/evaluate.py evaluation/run.py
e2e/test_life.py: commands/train/here.py core/saving.py training/load.py
e2e/test_ranks_launch.py: commands/train/elastic.py
e2e/test_train.py: core/protocols.py core/run.py core/step.py training/fit.py
e2e/test_value_model_runs.py: training/critic_checks.py
e2e/test_wheel.py: __main__.py
oracle/test_allocation.py: budget/allocators.py
oracle/test_selection.py: algos/selectors.py
ranks/test_rank_updates.py: learner/gradient_sums.py learner/sharding.py
unit/alarms/test_rules.py: alarms/history.py alarms/learning.py alarms/policy.py alarms/rollouts.py
unit/budget/test_estimates.py: budget/pass_rates.py
unit/budget/test_prompt_sampling.py: budget/sampling.py
unit/commands/check/test_proof.py: commands/check/rehearsal.py
unit/commands/doctor/test_doctor_text.py: commands/doctor/text.py
unit/commands/fetch/test_fetch.py: commands/fetch.py
unit/commands/init/test_project.py: commands/init.py
unit/commands/list/test_catalog.py: commands/list.py config_keys.py
unit/commands/show/test_show.py: commands/show.py
unit/commands/test_cli.py: commands/command_line.py commands/export.py commands/plot.py
unit/commands/test_evaluation_progress.py: evaluation/progress.py
unit/commands/test_installed_commands.py: state/foreign.py
unit/commands/test_python_door.py: run_view/data.py
unit/commands/test_recipe_runs.py: state/saved_runs.py
unit/commands/train/test_first_cause.py: commands/train/rank_end.py
unit/core/test_background_saving.py: core/progress.py
unit/core/test_member_answers.py: core/select.py
unit/core/test_phases.py: core/events.py
unit/core/test_prompt_pool.py: training/prompts.py
unit/core/test_size_plan.py: core/sizes.py
unit/core/test_step_metrics.py: core/metrics.py core/tally.py
unit/engines/test_native_blocks.py: engines/native/cache.py engines/native/decoder.py
unit/engines/test_native_memory.py: engines/native/cuda.py engines/native/memory.py engines/native/scheduler.py
unit/engines/test_own_process.py: engines/native/own_process.py
unit/engines/test_plain.py: engines/native/plain.py
unit/engines/test_process.py: engines/process/child.py engines/process/engine.py
unit/engines/test_process.py: engines/process/lifecycle.py engines/process/messages.py
unit/engines/test_requests.py: engines/stopping.py
unit/engines/test_served_change.py: engines/vllm/settings.py
unit/engines/test_vllm_outputs.py: engines/vllm/sampler.py
unit/environments/test_guess_number.py: tasks/guess_number.py
unit/environments/test_verifiers_environment.py: environments/verifiers.py
unit/evaluation/test_evaluation_report.py: evaluation/comparison.py evaluation/folder.py
unit/evaluation/test_evaluation_report.py: evaluation/result.py evaluation/text.py
unit/evaluation/test_run_settings.py: evaluation/settings.py
unit/learner/test_logprobs.py: learner/head.py
unit/learner/test_packing.py: learner/model_input.py
unit/learner/test_policy.py: learner/sequence_model.py
unit/learner/test_value_models.py: learner/value_model.py
unit/memory/test_memory_plan.py: memory/plan.py
unit/memory/test_parts.py: memory/trained_model.py
unit/memory/test_predict.py: engines/vllm/memory.py memory/demand.py
unit/models/test_adapter.py: models/backbone.py
unit/models/test_bnb.py: engines/native/linear.py
unit/models/test_gguf.py: models/gguf_tokenizer.py
unit/models/test_load.py: models/architecture.py
unit/rewards/math_equivalence/test_grader.py: rewards/graders.py rewards/math_equivalence/algebra.py
unit/rewards/math_equivalence/test_grader.py: rewards/math_equivalence/exact.py rewards/math_equivalence/latex.py
unit/rewards/math_equivalence/test_unit_names.py: rewards/math_equivalence/unit_words.py
unit/run_view/test_plot.py: run_view/configuration.py run_view/panels.py run_view/summary.py view/drawing.py
unit/run_view/test_run_forecast.py: run_view/forecast.py
unit/run_view/test_size_rows.py: run_view/decisions.py
unit/state/test_input_digests.py: state/resume.py
unit/state/test_log_damage.py: state/rollout_columns.py
unit/state/test_run_folder.py: state/folder.py state/manifest.py
unit/state/test_state_decisions.py: state/decisions.py
unit/tasks/test_tasks.py: tasks/problems.py tasks/source.py
unit/tasks/test_verifiers_task.py: tasks/verifiers.py
unit/test_config_file.py: config.py training/precision_checks.py
unit/test_error_catalogue.py: engines/freshness.py training/combinations.py
unit/test_installed.py: version.py
unit/test_options.py: algos/budget_members.py bounds.py
unit/test_registry.py: families.py
unit/trackers/test_tracker_members.py: trackers/interface.py trackers/mlflow.py trackers/tensorboard.py
unit/trackers/test_tracker_members.py: trackers/trackio.py trackers/wandb.py
unit/trackers/test_tracker_threads.py: trackers/feed.py
unit/trackers/test_tracking.py: trackers/items.py trackers/watch.py
unit/training/test_answer_record.py: training/answers.py
unit/training/test_budget_and_advice.py: commands/check/dry_run.py training/advice.py training/budget.py
unit/training/test_configs.py: core/members.py training/resolve.py
unit/training/test_first_plan.py: algos/size_prior.py
unit/training/test_turns.py: engines/native/turns.py
unit/verify/sandbox/test_hostile_programs.py: verify/sandbox/bwrap.py verify/sandbox/interpreter.py
unit/verify/sandbox/test_hostile_programs.py: verify/sandbox/landlock.py verify/sandbox/shim.py
unit/verify/sandbox/test_launch.py: verify/sandbox/choice.py verify/sandbox/limits.py
unit/verify/test_verifiers.py: verify/supervisor.py verify/supervisor_client.py verify/worker.py
unit/view/test_foreign_logs.py: view/screen.py
unit/winnow_lab/audit/test_audit.py: winnow_lab/audit.py
unit/winnow_lab/compare/test_compare_command.py: winnow_lab/compare/cautions.py winnow_lab/compare/comparison.py
unit/winnow_lab/compare/test_compare_command.py: winnow_lab/compare/picture.py winnow_lab/compare/text.py
unit/winnow_lab/compare/test_curve_csv.py: winnow_lab/compare/inputs.py
unit/winnow_lab/compare/test_speed_up.py: winnow_lab/compare/curve.py
unit/winnow_lab/logs/test_tensorboard.py: winnow_lab/logs/openrlhf.py winnow_lab/logs/skyrl.py
unit/winnow_lab/logs/test_trl.py: state/foreign_log.py winnow_lab/logs/reading.py
unit/winnow_lab/logs/test_trl_mixed.py: winnow_lab/logs/trl_files.py
unit/winnow_lab/plan/test_from_log.py: algos/setting_table.py training/size_fits.py
unit/winnow_lab/plan/test_from_log.py: winnow_lab/plan/advice.py winnow_lab/plan/text.py
unit/winnow_lab/profile/test_apart.py: winnow_lab/profile/measurement.py winnow_lab/profile/work.py
unit/winnow_lab/profile/test_panels.py: winnow_lab/profile/picture.py
unit/winnow_lab/profile/test_profiled.py: winnow_lab/profile/text.py
unit/winnow_lab/replay/test_replaying.py: winnow_lab/replay/text.py
unit/winnow_lab/report/test_report.py: winnow_lab/report/files.py
unit/winnow_lab/report/test_report_server.py: winnow_lab/report/data.py winnow_lab/report/server.py
unit/winnow_lab/report/test_rollouts.py: winnow_lab/report/html.py
unit/winnow_lab/report/test_run_data.py: run_view/tokens.py winnow_lab/report/groups.py winnow_lab/report/headline.py
unit/winnow_lab/score/test_score.py: winnow_lab/score/folder.py winnow_lab/scoring.py
unit/winnow_lab/sweep/test_grid.py: winnow_lab/sweep/file.py
unit/winnow_lab/sweep/test_run_sweep.py: winnow_lab/sweep/display.py winnow_lab/sweep/loop.py
unit/winnow_lab/sweep/test_run_sweep.py: winnow_lab/sweep/process.py winnow_lab/sweep/tied_child.py
unit/winnow_lab/sweep/test_sweep_plan.py: winnow_lab/sweep/plan.py
unit/winnow_lab/test_chat_command.py: winnow_lab/chat.py
with_ray/test_sweep_on_ray.py: winnow_lab/sweep/on_ray.py
with_vllm/test_vllm_engine.py: engines/vllm/engine.py engines/vllm/start.py
with_vllm/test_vllm_own_process.py: engines/process/broadcast.py
with_vllm/test_vllm_training.py: engines/vllm/worker.py
"""
PAIRS = (line.split(": ") for line in COVERS.strip().split("\n"))
COVERED = {file: test for test, covered in PAIRS for file in covered.split()}


def files() -> set[str]:
    """Every file of winnow and of winnow_lab but those that only make a folder a package or declare a command."""
    paths = {path: SOURCE for path in SOURCE.rglob("*.py")} | {path: LAB.parent for path in LAB.rglob("*.py")}
    return {path.relative_to(above).as_posix() for path, above in paths.items() if path.name != "__init__.py"}


def has_own_test(file: str) -> bool:
    """Whether a test file in the same folder of tests/unit, or in tests/oracle, has the file's name."""
    path = Path(file)
    name = f"test_{path.stem}.py"
    return (TESTS / "unit" / path.parent / name).exists() or (TESTS / "oracle" / name).exists()


def test_every_file_has_a_test_of_its_name_or_stands_in_the_table():
    assert sorted(file for file in files() if not has_own_test(file) and file not in COVERED) == []


def test_the_table_names_files_and_tests_that_exist_and_no_file_twice():
    assert sorted(set(COVERED) - files()) == []
    assert sorted(test for test in COVERED.values() if not (TESTS / test).exists()) == []
    assert sorted(file for file in COVERED if has_own_test(file)) == []
