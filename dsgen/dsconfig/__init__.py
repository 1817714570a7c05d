"""A ds_config.json that anyone wrote: its kind, the view of it that rules see, its schema, and a recipe from it."""
