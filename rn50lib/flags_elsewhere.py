"""What flags of other training programs are called here, for those who bring them along.

The names are those of timm's train.py, torchvision's references/classification/train.py and the
MXNet train.py, runner and benchmark.py of NVIDIA's DeepLearningExamples, from 18.12 to the last.
"""

from __future__ import annotations

# What it is here (or "there is none: " and why): the names elsewhere. No name is a flag of a run.
ANSWERS = {
    # data
    "here it is --data-root FOLDER, which holds train and val":
        "--data --data-dir --data-path --data-train --data-val --train-dir --val-dir --dataset"
        " --dataset-download -d",
    "here it is --data-root FOLDER: the split is in the folder's names, train and val":
        "--train-split --val-split",
    "there is none: an index is looked for beside its record file, in --data-root":
        "--data-train-idx --data-val-idx",
    "there is none: classes are the folders' names in order, or labels of the record files;"
    " --num-classes says how many": "--class-map",
    "there is none: it is `rn50 predict PREFIX EPOCH a.jpg`": "--data-pred",
    "here it is --loader native, dali or synthetic": "--data-backend --data-loader --use-dali",
    "here it is --data-nthreads N":
        "--workers --num-workers -j --dali-threads --dali-validation-threads"
        " --validation-dali-threads --data-mxnet-threads",
    "here it is --image-shape SIZE":
        "--img-size --image-size --input-size --train-crop-size --val-crop-size --in-chans",
    "here it is --val-resize SIZE": "--val-resize-size --data-val-resize --crop-pct --crop-mode",
    "here it is --resample antialias or fast": "--interpolation --train-interpolation",
    "there is none: every model gets ImageNet's mean and deviation":
        "--mean --std --rgb-mean --rgb-std",
    "there is none: shards are read afresh in every epoch": "--cache-dataset",
    "there is none: loaders always fetch ahead":
        "--pin-mem --no-prefetcher --use-multi-epochs-loader --dali-prefetch-queue",
    "there is none: DALI runs with settings of its own":
        "--dali-nvjpeg-memory-padding --dali-fuse-decoder --dali-nvjpeg-width-hint"
        " --dali-nvjpeg-height-hint --dali-dont-use-mmap",
    "there is none: the workers share the validation images, and each is seen once":
        "--dali-separ-val --separ-val --dist-eval",
    "there is none: -b is for validation, too": "--validation-batch-size -vb",
    "there is none: every epoch sees each image once": "--epoch-repeats --aug-repeats --ra-sampler"
        " --ra-reps",
    "there is none: --seed covers the loaders, too": "--worker-seeding",
    # augmentation
    "there is none: the recipe crops and mirrors as the published one does; --override"
    " augment=FILE:NAME puts in a function of yours":
        "--aa --auto-augment --augmix-severity --ra-magnitude --color-jitter --no-aug --scale"
        " --ratio --hflip --random-crop --random-resized-crop --random-mirror --max-random-h"
        " --max-random-s --max-random-l --min-random-aspect-ratio --max-random-aspect-ratio"
        " --max-random-shear-ratio --max-random-scale --min-random-scale --max-random-area"
        " --min-random-area --min-crop-size --max-crop-size --brightness --contrast --saturation"
        " --pca-noise --set-resnet-aug --set-data-aug-level --pad-size --fill-value --reprob"
        " --remode --recount --resplit --random-erase",
    "here it is --rotate DEGREES": "--max-random-rotate-angle",
    "here it is --flip-up-down": "--vflip",
    "there is none: the recipes mix no images":
        "--mixup --mixup-alpha --mixup-prob --mixup-switch-prob --mixup-mode --mixup-off-epoch"
        " --cutmix --cutmix-alpha --cutmix-minmax --aug-splits --jsd-loss --bce-loss"
        " --bce-target-thresh",
    # the model
    "here it is --num-layers 18, 34, 50, 101 or 152: all models are ResNets":
        "--model --arch -a --model-kwargs --num-groups",
    "here it is --model-prefix PREFIX, with --load-epoch N to start from one of its checkpoints":
        "--pretrained --weights --initial-checkpoint --load --checkpoint --pretrained-path",
    "there is none: a ResNet drops nothing out":
        "--drop --drop-connect --drop-path --drop-block --gp",
    "there is none: batch norm has the published momentum and epsilon":
        "--bn-momentum --bn-eps --batchnorm-mom --batchnorm-eps",
    "there is none: training normalises on each worker, and running statistics are averaged over"
    " the workers before validation": "--sync-bn --dist-bn --split-bn --no-ddp-bb",
    "there is none: no moving average of the weights is kept":
        "--model-ema --model-ema-decay --model-ema-steps --model-ema-force-cpu"
        " --model-ema-warmup",
    "there is none: the backend takes the layout and kernels that are fastest here":
        "--channels-last --memory-format --input-layout --conv-layout --batchnorm-layout"
        " --pooling-layout --fuse-bn-relu --fuse-bn-add-relu --conv-algo --force-tensor-core"
        " --custom-bn-off --fuser",
    "here it is --compile": "--torchcompile --torchscript --xla --use-xla",
    "there is none: activations are kept; a smaller -b needs less memory":
        "--grad-checkpointing",
    # the optimizer and its rate
    "here it is --num-epochs N": "--epochs --epoch --run-epochs --max-epochs",
    "here it is --optimizer sgd or lars": "--opt --optim",
    "there is none: SGD and LARS have no such number": "--opt-eps --opt-betas --layer-decay",
    "here it is --mom MOMENTUM": "--momentum",
    "here it is --wd DECAY": "--weight-decay",
    "here it is --bn-decay or --no-bn-decay": "--norm-weight-decay --bias-weight-decay",
    "here it is --label-smoothing SHARE": "--smoothing",
    "there is none: gradients are not clipped": "--clip-grad --clip-mode --clip-grad-norm",
    "here it is --macrobatch-size IMAGES, of each worker in one update":
        "--grad-accum-steps --accum-steps --accumulation-steps --gradient-accumulation-steps"
        " --accumulate-grad-batches",
    "here it is --lr-schedule step, cosine or poly": "--sched --lr-scheduler --scheduler",
    "here it is --lr RATE, at a global batch of 256":
        "--learning-rate --lr-base --lr-base-size --lr-base-scale",
    "here it is --lr-step-epochs 30,60,80":
        "--lr-steps --lr-step-size --decay-milestones --decay-epochs --milestones",
    "there is none: each of --lr-step-epochs divides the rate by ten":
        "--lr-gamma --lr-factor --decay-rate --dr --gamma",
    "here it is --warmup-epochs N, from a rate of 0":
        "--lr-warmup-epochs --lr-warmup-method --warmup-strategy --lr-warmup-decay --warmup-lr"
        " --warmup-prefix",
    "there is none: the rate falls to 0, once":
        "--min-lr --lr-min --lr-noise --lr-noise-pct --lr-noise-std --lr-cycle-mul"
        " --lr-cycle-decay --lr-cycle-limit --lr-k-decay --cooldown-epochs --patience-epochs",
    # precision
    "here it is --dtype float16 or bfloat16":
        "--amp --amp-dtype --amp-impl --apex-amp --native-amp --fp16 --bf16 --half"
        " --mixed-precision --precision --use-amp",
    "here it is --loss-scale dynamic, or a number": "--static-loss-scale --dynamic-loss-scale",
    # where it runs
    "here it is -n N, a worker for each GPU":
        "--gpus --num-gpus --ngpus --n-gpus --world-size --nproc --nproc-per-node --np",
    "there is none: a worker takes its rank from the launcher that started it":
        "--local-rank --rank --dist-url --dist-backend --gpu",
    "there is none: GPUs are used where there are some; CUDA_VISIBLE_DEVICES chooses among them,"
    " and hides all where it is empty": "--device --no-cuda --cuda --cpu",
    "here it is --comm horovod or ddp": "--kv-store --use-horovod --distributed",
    "there is none: on a processor a run repeats to the last bit, given the same --seed and"
    " --threads": "--use-deterministic-algorithms --deterministic",
    # what it does, writes and tells
    "here it is --only-inference": "--test-only --evaluate --eval --validate",
    "there is none: --only-inference validates, --no-val trains alone, and `rn50 predict` takes"
    " pictures": "--mode",
    "here it is --test-io": "--test-io-mode",
    "here it is --load-epoch N, or --resume for the newest checkpoint":
        "--start-epoch --begin-epoch --no-resume-opt --auto-resume",
    "here it is --model-prefix PREFIX for the checkpoints and --report FILE for the figures":
        "--output --output-dir --workspace --save-dir --checkpoint-dir --experiment",
    "here it is --save-period EPOCHS": "--save-frequency --save-freq --recovery-interval",
    "here it is --keep N": "--checkpoint-hist",
    "here it is --disp-batches N": "--log-interval --print-freq --log-freq --verbose",
    "here it is --report FILE": "--log --dllogger-log --log-file --logging-dir --eval-metric",
    "here it is --logger wandb; its own variables, such as WANDB_PROJECT, say where to":
        "--wandb --log-wandb --wandb-project --wandb-entity --wandb-tags",
    "here it is --logger mlflow": "--mlflow",
    "here it is --logdir FOLDER": "--tensorboard --tb --tensorboard-dir --log-dir",
    "here it is --preset NAME, or --recipe NAME": "-c",
    "there is none: a picture is scored once, from its centre": "--tta",
    "here it is --zero-gamma": "--bn-gamma-init0",
    "here it is --benchmark-iters N": "--epoch-size",
    "here it is --profile-trace FILE": "--profile-worker-suffix",
    "there is none: the workers average among themselves, without a server":
        "--profile-server-suffix",
    "there is none: gradients travel whole, or in 16 bits with --fp16-allreduce":
        "--gc-type --gc-threshold",
    "there is none: the weights start as He et al. have them": "--initializer",
    "there is none: the weights are not printed while they change": "--monitor",
    "there is none: the loss is cross-entropy, and is always shown": "--loss",
    # what a benchmark takes
    "there is none: `rn50 benchmark` starts its workers by itself": "--executable",
    "there is none: a cell that fails is left out, and Ctrl-C keeps what was measured":
        "--timeout",
    "there is none: images are not written anywhere": "--save-images",
}  # fmt: skip

TABLE = {name: answer for answer, names in ANSWERS.items() for name in names.split()}
