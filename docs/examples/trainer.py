"""Training with transformers' Trainer; the recipe trainer.yaml names it as its entrypoint."""

from dsgen import runtime


def main() -> None:
    with runtime.start() as run:
        from transformers import Trainer, TrainingArguments

        data = runtime.build_data(run)
        # Before the model: at stage 3 transformers looks at the arguments while it builds one.
        arguments = TrainingArguments(**runtime.trainer_arguments(run, data.steps()))
        trainer = Trainer(
            model=runtime.build_model(run),
            args=arguments,
            train_dataset=runtime.torch_dataset(data),
            callbacks=[runtime.trainer_callback(run)],
        )
        trainer.train(resume_from_checkpoint=runtime.trainer_checkpoint(run))


if __name__ == "__main__":
    main()
