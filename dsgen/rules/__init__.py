"""Rules: each one function with a code of its own; families in files. The same rules check recipes and ds_configs."""
