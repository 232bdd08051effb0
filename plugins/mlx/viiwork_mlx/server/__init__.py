"""The MLX server that a backend runs: mlx_lm's own, wrapped. Run as `python -m viiwork_mlx.server`."""
