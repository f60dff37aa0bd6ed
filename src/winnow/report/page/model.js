'use strict';
/**
 * What the file holds, read once: runs, their groups, and one flat list of rollouts, `items`, in the order of the log.
 * An item is {run, step, group, rollout}, `run` being a number. Under `winnow report --serve` steps are fetched.
 */
(() => {
  const data = JSON.parse(document.getElementById('winnow-data').textContent);
  const runs = data.runs;
  const items = [];
  const loaded = new Set(); // "run/step", of what is in `items`
  const waiting = new Map();

  /** The text of a rollout, put together from its tokens the first time somebody asks. */
  function textOf(rollout) {
    if (typeof rollout.text !== 'string') rollout.text = rollout.pieces ? rollout.pieces.join('') : '';
    return rollout.text;
  }

  const asText = (value) =>
    (value === null || value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value));

  function take(run, groups) {
    for (const group of groups) {
      group.prompt = asText(group.prompt);
      group.prompt_id = asText(group.prompt_id);
      loaded.add(`${run}/${group.step}`);
      for (const rollout of group.rollouts) items.push({ run, step: group.step, group, rollout });
    }
  }

  /** Fetch a step unless it is here. Raises an Error that says what went wrong. */
  function load(run, step) {
    const key = `${run}/${step}`;
    if (!data.served || loaded.has(key)) return Promise.resolve();
    if (!waiting.has(key)) waiting.set(key, ask(run, step, key).finally(() => waiting.delete(key)));
    return waiting.get(key);
  }

  async function ask(run, step, key) {
    let answer;
    try {
      answer = await fetch(`runs/${Number(run)}/steps/${Number(step)}`);
    } catch {
      throw new Error('no answer: is `winnow report --serve` still running?');
    }
    if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.text()).slice(0, 500)}`);
    take(run, (await answer.json()).groups);
    loaded.add(key);
    items.sort((a, b) => a.run - b.run || a.step - b.step); // stable: the log's order within a step
  }

  /** The group of a prompt in a step of a run, if it is here. */
  const groupAt = (run, step, prompt) =>
    items.find((item) => item.run === run && item.step === step && item.group.prompt_id === prompt)?.group;

  /** Everywhere else the prompt of this item was sampled: [{run, step, group}]. */
  function elsewhere(item) {
    const found = new Map();
    for (const other of items) {
      if (other.group.prompt_id !== item.group.prompt_id || other.group === item.group || found.has(other.group)) continue;
      found.set(other.group, { run: other.run, step: other.step, group: other.group });
    }
    return [...found.values()];
  }

  runs.forEach((run, i) => take(i, run.groups ?? []));
  winnow.model = { data, runs, items, served: Boolean(data.served), loaded, load, textOf, asText, groupAt, elsewhere, several: runs.length > 1 };
})();
