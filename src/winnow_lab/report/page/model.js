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
  const frames = new Map();

  /** The text of a rollout, assembled from its tokens at the first use. */
  function textOf(rollout) {
    if (typeof rollout.text !== 'string' && rollout.pieces) rollout.text = rollout.pieces.join('');
    return rollout.text ?? '';
  }

  /** The advantage of a rollout: its own, or the mean over its tokens where each has one. */
  function advantageOf(rollout) {
    const list = rollout.advantages;
    if (rollout.advantage !== null || !list?.length) return rollout.advantage;
    return list.reduce((sum, x) => sum + (x ?? 0), 0) / list.length;
  }

  const asText = (value) =>
    (value === null || value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value));

  const PARTS = 10000; // of a nat: log-probs are whole numbers of these (rollouts.py)

  const valueOf = (column, i) => (Array.isArray(column) ? column[i] : column.of[typeof column.at === 'number' ? column.at : column.at[i]]);

  /**
   * A rollout, from the columns of its group. The data of its tokens is assembled at the first use, as few of tens of
   * thousands of rollouts are ever read.
   */
  class Rollout {
    #columns;
    #place;
    #pieces;
    #logprobs;

    constructor(columns, place) {
      this.#columns = columns;
      this.#place = place;
      for (const name in columns) if (name !== 'pieces' && name !== 'logprobs') this[name] = valueOf(columns[name], place);
    }

    get pieces() {
      const { of, at } = this.#columns.pieces;
      if (this.#pieces === undefined) this.#pieces = (typeof at === 'number' ? null : at[this.#place]?.map((place) => of[place])) ?? null;
      return this.#pieces;
    }

    get logprobs() {
      if (this.#logprobs === undefined) this.#logprobs = valueOf(this.#columns.logprobs, this.#place)?.map((x) => (x === null ? null : x / PARTS)) ?? null;
      return this.#logprobs;
    }
  }

  function take(run, groups) {
    frames.delete(run);
    for (const group of groups) {
      group.prompt = asText(group.prompt);
      group.prompt_id = asText(group.prompt_id);
      const columns = group.rollouts;
      group.rollouts = Array.from({ length: group.count }, (_, place) => new Rollout(columns, place));
      loaded.add(`${run}/${group.step}`);
      for (const rollout of group.rollouts) items.push({ run, step: group.step, group, rollout });
    }
  }

  /** Whether rollouts of a step of a run can be read here. */
  const has = (run, step) => (runs[run]?.steps ?? []).some((s) => s.step === step && (data.served || s.included));

  /** Fetch a step unless it is loaded. Raises an Error with the reason. */
  function load(run, step) {
    const key = `${run}/${step}`;
    if (!data.served || loaded.has(key)) return Promise.resolve();
    if (!waiting.has(key)) waiting.set(key, fetchStep(run, step, key).finally(() => waiting.delete(key)));
    return waiting.get(key);
  }

  async function fetchStep(run, step, key) {
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

  /**
   * How much of all prompts of a run is the same at both ends, [characters before, characters after]: a template and a
   * system prompt, which a list leaves out. It ends where a line or a mark of the template does, never within words.
   */
  function frame(run) {
    if (frames.has(run)) return frames.get(run);
    const prompts = [...new Set(items.filter((item) => item.run === run).map((item) => item.group.prompt))];
    const [first = '', ...others] = prompts;
    let [before, after] = others.length ? [first.length, first.length] : [0, 0];
    for (const other of others) {
      before = same(before, (i) => other[i] === first[i]);
      after = same(after, (i) => other.at(-1 - i) === first.at(-1 - i));
    }
    before = Math.max(...['\n', '>', ']'].map((end) => first.slice(0, before).lastIndexOf(end))) + 1;
    const ends = ['\n', '<', '['].map((start) => first.indexOf(start, first.length - after)).filter((i) => i >= 0);
    after = after && ends.length ? first.length - Math.min(...ends) : 0;
    frames.set(run, [before, after]);
    return frames.get(run);
  }

  function same(most, test) {
    let n = 0;
    while (n < most && test(n)) n += 1;
    return n;
  }

  /** What is a prompt's own, in the frame that all prompts of its run share. */
  function ownPrompt(item) {
    const [before, after] = frame(item.run);
    const { prompt } = item.group;
    return prompt.slice(before, Math.max(before, prompt.length - after)).trim() || prompt;
  }

  /** Whether two groups are of one prompt: data sets may give their problems the same ids. */
  const samePrompt = (a, b) => a.prompt_id === b.prompt_id && a.prompt === b.prompt && a.task === b.task;

  /** Everywhere else the prompt of this item was sampled: [{run, step, group}]. */
  function elsewhere(item) {
    const groups = new Map();
    for (const other of items) {
      if (other.group === item.group || groups.has(other.group) || !samePrompt(other.group, item.group)) continue;
      groups.set(other.group, { run: other.run, step: other.step, group: other.group });
    }
    return [...groups.values()];
  }

  /** Take the newer data of the same runs, whose rollouts stay. Returns whether anything differs. */
  function replace(fresh) {
    let changed = false;
    fresh.slice(0, runs.length).forEach((run, i) => {
      const { groups, ...own } = run;
      const { groups: kept, ...before } = runs[i];
      if (JSON.stringify(own) === JSON.stringify(before)) return;
      runs[i] = { ...own, groups: kept };
      changed = true;
    });
    return changed;
  }

  runs.forEach((run, i) => take(i, run.groups ?? []));
  winnow.model = { data, runs, items, served: Boolean(data.served), loaded, has, load, replace, textOf, advantageOf, asText, frame, ownPrompt, elsewhere, several: runs.length > 1 };
})();
