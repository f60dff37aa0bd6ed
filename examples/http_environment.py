"""Train on an environment behind HTTP, as OpenEnv has them: the policy's tool calls become its actions.

    python examples/http_environment.py http://localhost:8000

`POST /reset` begins an episode and `POST /step` takes an action. The server answers with JSON, {"observation": ...,
"reward": ..., "done": ...}, and has an episode for each `episode_id`. Change `act` for the actions of your server. A
network need not give the same answer twice, so the answers are recorded in the run's folder for a resume."""

import json
import sys
import urllib.request
import uuid

import winnow


class Remote:
    """One episode of a server; each rollout has its own."""

    def __init__(self, url: str = "http://localhost:8000", seconds: float = 10.0):
        self._url, self._seconds, self._episode = url, seconds, str(uuid.uuid4())
        self._reward, self.done = 0.0, False

    def reset(self, **row) -> None:
        self._post("reset", {"row": row})  # the fields of the problem, and its `answer`

    def act(self, action: str, amount: int) -> str:
        """Take an action in the environment.

        Args:
            action: The name of the action
            amount: How often
        """
        result = self._post("step", {"action": {"name": action, "amount": amount}})
        self._reward, self.done = result["reward"] or 0.0, result["done"]
        return json.dumps(result["observation"])

    def get_reward(self) -> float:
        return self._reward

    def _post(self, path: str, body: dict) -> dict:
        data, head = json.dumps({"episode_id": self._episode, **body}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", data, head)
        with urllib.request.urlopen(request, timeout=self._seconds) as answer:
            return json.loads(answer.read())


if __name__ == "__main__":
    environment = {"use": "examples/http_environment.py:Remote", "url": sys.argv[1], "recorded": True}
    rollout = {"max_new_tokens": 128}
    verify = {"workers": 8, "timeout_seconds": 30.0}  # for all requests of a turn, one for each tool call
    winnow.train(task="arithmetic", environment=environment, rollout=rollout, verify=verify, output="runs/remote")
