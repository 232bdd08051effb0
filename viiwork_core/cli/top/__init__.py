"""viiwork top: the mesh in a terminal, as the page /mesh shows it in a browser."""
