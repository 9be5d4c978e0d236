"""A served chat model x environment -> episodes, so that any model can be evaluated under the rules of the small one.

Works on texts, not tokens: what comes of it can be read and scored, not trained on. Each turn is an assistant message
and each observation a user message, also in the tags protocol, where a local policy goes on inside its own turn: an
endpoint cannot continue a message. No stop strings are sent (some models refuse them, others take the tag off); a reply
is cut here after the first one outside of its thoughts, and all tokens of it count, since they were paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace

from seekling.env.environment import SearchEnv, Session
from seekling.env.protocol.stopping import cut_after_stop
from seekling.errors import ConfigError, InfrastructureError
from seekling.rollout.chat import ChatModel, Price, Spent
from seekling.rollout.loop import Decoding, Run
from seekling.rollout.sampler import derive_seed
from seekling.types import Episode, EpisodeGroup, Message, Question, StopReason


class ChatRoller:
    """Rolls questions out through an environment with a served model, `in_flight` episodes at once.

    A price adds up dollars; None counts tokens only.
    """

    def __init__(self, env: SearchEnv, client: ChatModel, *, in_flight: int = 8, price: Price | None = None) -> None:
        self._env, self._client, self._in_flight, self._price = env, client, in_flight, price

    def rollout(
        self,
        questions: Sequence[Question],
        decoding: Decoding,
        *,
        seed: int = 0,
        on_group: Callable[[EpisodeGroup], None] = lambda group: None,
    ) -> list[EpisodeGroup]:
        """Produce one episode for each of P questions: P groups without trajectories, in their order.

        The decoding's budgets are in the server's tokens; servers promise little about a seed. `on_group` is called in
        this thread as each episode ends.

        Raises:
            ConfigError: min-p is asked for, or the endpoint refuses us altogether; `on_group` has what was answered
                before.
        """
        if decoding.min_p:
            raise ConfigError(
                f"min_p = {decoding.min_p:g}, which chat completions do not have; leave it 0, and give it among the "
                "endpoint's extra fields where the server knows it"
            )
        groups: dict[int, EpisodeGroup] = {}
        pool = ThreadPoolExecutor(max_workers=self._in_flight)
        futures = {
            pool.submit(self._episode, question, decoding, derive_seed(seed, *question.key, 0)): number
            for number, question in enumerate(questions)
        }

        def note(future: Future[Episode]) -> None:
            number, episode = futures[future], future.result()
            is_failed = episode.stop_reason is StopReason.INFRA_FAILURE
            kept, failed = ((), (episode,)) if is_failed else ((episode,), ())
            groups[number] = EpisodeGroup(questions[number], kept, (), failed)
            on_group(groups[number])

        try:
            for future in as_completed(futures):
                note(future)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            # When one ended all, those that came to their own end meanwhile are kept too: they were paid for.
            for future, number in futures.items():
                if number not in groups and not future.cancelled() and future.exception() is None:
                    note(future)
        return [groups[number] for number in range(len(questions))]

    def _episode(self, question: Question, decoding: Decoding, seed: int) -> Episode:
        run, spent = Run(question, decoding, seed), Spent()
        try:
            with self._env.start(question) as session:
                run.prompt = tuple(session.prompt)
                self._turns(run, spent, session)
        except InfrastructureError as error:
            run.fail(error)
        return run.episode(self._env.protocol.name, usage=self._usage(spent))

    def _usage(self, spent: Spent) -> dict[str, float]:
        """What the server reported. Where it does not count tokens nothing is known about them, and no price either."""
        usage = {"num_requests": float(spent.num_requests)}
        if spent.is_counted:
            usage |= {"prompt_tokens": float(spent.prompt_tokens), "completion_tokens": float(spent.completion_tokens)}
            if (cost_usd := spent.cost_usd(self._price)) is not None:
                usage["cost_usd"] = cost_usd
        return usage

    def _turns(self, run: Run, spent: Spent, session: Session) -> None:
        messages, count_tokens, num_tokens = list(run.prompt), self._env.budget.count_tokens, 0
        while run.stop_reason is None:
            left = run.decoding.episode_tokens - num_tokens
            if run.turns and left <= 0:
                run.stop_reason = StopReason.MAX_TOKENS
                return
            reply = self._client.ask(
                messages,
                max_tokens=max(1, min(run.decoding.turn_tokens, left)),
                temperature=run.temperature,
                top_p=run.decoding.top_p,
                seed=derive_seed(run.seed, len(run.turns)) if run.temperature > 0 else None,
            )
            spent.add(reply)
            prompt_tokens, completion_tokens = reply.prompt_tokens, reply.completion_tokens
            if not reply.is_counted:
                prompt_tokens = sum(count_tokens(each.content) for each in messages)
                completion_tokens = count_tokens(reply.text)
            num_tokens = prompt_tokens + completion_tokens
            text, is_complete = cut_after_stop(reply.text, self._env.protocol.stops)
            result = session.step(text, finish="length" if reply.is_cut and not is_complete else "stop")
            observed = result.turn.observation
            num_observed = count_tokens(observed) if observed else 0
            turn = replace(result.turn, num_action_tokens=completion_tokens, num_observation_tokens=num_observed)
            run.add(result, turn)
            messages += [Message("assistant", text), Message("user", observed.strip())]
