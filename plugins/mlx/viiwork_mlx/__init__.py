"""MLX (mlx_lm) as an engine of viiwork."""
