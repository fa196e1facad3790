"""The real transformers code run on fake CUDA tensors, every storage followed through two training steps.

No GPU and no weights: the model is built from its config under FakeTensorMode, and each CUDA storage is followed from
the operator that makes it to the moment its last owner lets go. A C++ compiler is needed once (:mod:`.guard`).

Command: ``memlint trace SOURCE`` (:mod:`memlint.commands.trace`); ``--saved`` lists what forward keeps for backward,
``--events FILE`` writes every allocation and free in order.

Library::

    from memlint.measure.trace.run import trace_model
    from memlint.measure.trace.report import saved_table, write_events

    result = trace_model({"model_type": "llama", "num_hidden_layers": 2}, batch=1, seq=512, precision="bf16")
    result.phase_peaks, result.phase_breakdowns["backward"], result.peaks["backward"].op
    print(saved_table(result))
    write_events(result, "events.tsv")

Settings are the fields of :class:`.settings.TraceSettings`; ``every_layer=False`` carries a deep model on from two
shallow traces (:mod:`.extend`). Reference points: ``python -m memlint.measure.trace.points --points FILE --id g150``.

Where things are: ``run`` the step, ``recorder`` the account, ``mode`` what sees the operators, ``cuda_choices`` what a
machine without a GPU would choose otherwise, ``workspace`` scratch inside kernels, ``sharding`` FSDP2 over ranks that
do not exist, ``quantised`` and ``bnb_kernels`` bitsandbytes' layers and operators, ``optimizers`` what needs a GPU to
run, ``from_job`` a training job as settings, ``job`` its trace in the contract's form of an estimate, ``compare`` that
beside the simulated figures.
"""
