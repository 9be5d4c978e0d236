"""Curves of samplers on Ray: one chart for all of them, and none for each."""

import json

from seekling.report.curves import charts_of
from seekling.report.read import read_run


def test_hundreds_of_samplers_are_one_chart_of_the_slowest_and_the_fastest(tmp_path):
    rows = [
        {
            "stage": "rl",
            "step": step,
            "samplers_idle_share": 0.25,
            **{f"sampler_{number}_tokens_per_s": 100.0 * step + number for number in range(300)},
        }
        for step in (1, 2)
    ]
    del rows[1]["sampler_0_tokens_per_s"]  # the step was sampled without it
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    charts = charts_of(read_run(tmp_path), [])
    assert [chart.title for chart in charts.time] == ["Samplers with nothing to do", "Throughput of a sampler"]
    slowest, fastest = charts.time[1].lines
    assert (slowest.ys, fastest.ys) == ((100.0, 201.0), (399.0, 499.0))
    assert charts.more == ()
