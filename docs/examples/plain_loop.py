"""A training loop of one's own on the pieces of dsgen.runtime; plain-loop.yaml names it as its entrypoint."""

import argparse

from dsgen import runtime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=100)
    arguments = parser.parse_args()

    with runtime.start() as run:
        # Imported here: DeepSpeed chooses its accelerator when it is imported, and start has checked it.
        import deepspeed

        data = runtime.build_data(run)
        model = runtime.build_model(run)
        engine, _, _, _ = deepspeed.initialize(
            model=model, model_parameters=runtime.trainable_parameters(model), config=str(run.ds_config)
        )
        steps = data.steps()
        done = runtime.resume(run, engine, data)
        runtime.begin(run, steps, done=done)
        while done < steps:
            total = 0.0
            batch = data.next_batch()
            for samples in data.micro_batches(batch):
                tensors, _ = data.tensors(samples)
                loss = engine(**tensors).loss
                engine.backward(loss)
                lr = engine.get_lr()[0]
                engine.step()
                total += loss.detach()
            done += 1
            stop = runtime.log_step(run, done, total / run.settings.accumulation, lr=lr)
            if stop or done == steps or done % arguments.save_every == 0:
                runtime.save_checkpoint(run, engine, data, done)
            if stop:
                break
        runtime.finish(run, done, steps)


if __name__ == "__main__":
    main()
