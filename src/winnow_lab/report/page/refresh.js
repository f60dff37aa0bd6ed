'use strict';
/**
 * Under `winnow report --serve`: the page follows its runs. It requests their data every few seconds while somebody can
 * see it, and draws again what changed; the place, the scroll and the rollouts that were read stay.
 */
(() => {
  const { model, main, foreign } = winnow;
  const EVERY = 5000; // milliseconds
  let known = null; // the ETag of what is shown
  let busy = false;

  /** Request what is new. Resolves to whether something was. */
  async function now() {
    if (busy) return false;
    busy = true;
    try {
      const answer = await fetch('data', { headers: known ? { 'If-None-Match': known } : {} });
      if (answer.status === 304) return false;
      if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.text()).slice(0, 200)}`);
      const fresh = await answer.json();
      const first = known === null;
      known = answer.headers.get('ETag');
      const changed = model.replace(fresh.runs);
      if (changed) main.redraw();
      if (changed || first) main.say(`runs as of ${new Date().toLocaleTimeString()}`);
      return changed;
    } catch (error) {
      main.say(`not refreshed: ${foreign.line(error.message, 200)}`);
      return false;
    } finally {
      busy = false;
    }
  }

  if (model.served) setInterval(() => { if (!document.hidden) now(); }, EVERY);
  winnow.refresh = { now };
})();
