"""The text for Prometheus, read by its own library. Needs no MLX."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from viiwork_mlx.server.figures import Figures


def test_what_was_added_is_read_back() -> None:
    figures = Figures()
    figures.add("finished")
    figures.add("finished")
    figures.add("left")
    figures.add("prompt_tokens", 300)
    figures.add("prompt_seconds", 0.25)
    figures.add("save_transfers")
    families = text_string_to_metric_families(figures.text({"busy": 1, "memory_active_bytes": 12_345_678_901}))
    found = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    assert found["viiwork_mlx_requests_total", "finished"] == 2
    assert found["viiwork_mlx_requests_total", "left"] == 1
    assert found["viiwork_mlx_requests_total", "failed"] == 0
    assert found["viiwork_mlx_prompt_tokens_total",] == 300
    assert found["viiwork_mlx_prompt_seconds_total",] == 0.25
    assert found["viiwork_mlx_transfers_total", "save"] == 1
    assert found["viiwork_mlx_transfers_total", "restore"] == 0
    assert found["viiwork_mlx_busy",] == 1
    assert found["viiwork_mlx_memory_active_bytes",] == 12_345_678_901
