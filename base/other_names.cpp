// SPDX-License-Identifier: Apache-2.0
#include "base/other_names.h"

#include <algorithm>
#include <cctype>

namespace arbalest {
namespace {

struct OwnName {
  std::string_view ours;
  std::string_view theirs;  // words in lower case, with '-' for '_'
};

// Operators, attributes, commands, options and sources in one: a name is looked for among candidates of one kind, so
// that the same word may stand for several of ours.
constexpr OwnName kOwnNames[] = {
    {"arbalest.Linear", "dense gemm matmul fc fullyconnected innerproduct lazylinear"},
    {"arbalest.Conv", "conv1d conv2d conv3d convolution convolution2d lazyconv2d"},
    {"arbalest.BatchNorm",
     "batchnorm1d batchnorm2d batchnorm3d batchnormalization batchnormalisation syncbatchnorm bn"},
    {"arbalest.LayerNorm", "layernormalization layernormalisation"},
    {"GroupNormalization", "groupnorm"},
    {"InstanceNormalization", "instancenorm instancenorm2d"},
    {"arbalest.StochasticDepth", "droppath"},
    {"arbalest.ClassToken", "clstoken"},
    {"MaxPool", "maxpool1d maxpool2d maxpool3d maxpooling maxpooling1d maxpooling2d maxpooling3d"},
    {"AveragePool", "avgpool avgpool1d avgpool2d avgpool3d averagepooling1d averagepooling2d averagepooling3d"},
    {"GlobalAveragePool", "adaptiveavgpool2d globalaveragepooling globalaveragepooling2d globalavgpool gap"},
    {"GlobalMaxPool", "adaptivemaxpool2d globalmaxpooling2d"},
    {"ConvTranspose", "convtranspose2d conv2dtranspose deconvolution deconv"},
    {"Clip", "relu6"},
    {"Swish", "silu"},
    {"Concat", "cat concatenate"},
    {"Gather", "embedding"},
    {"arbalest.Embedding", "gather lookup embeddinglayer"},
    {"Upsample", "upsampling2d interpolate"},
    {"arbalest.SoftmaxCrossEntropy",
     "crossentropyloss crossentropy cross-entropy categoricalcrossentropy sparsecategoricalcrossentropy nllloss "
     "softmaxcrossentropyloss nll"},
    {"arbalest.SigmoidCrossEntropy", "bcewithlogitsloss bceloss bce binarycrossentropy"},
    {"arbalest.MeanSquaredError", "mseloss mse l2loss"},
    {"arbalest.L1Loss", "mae meanabsoluteerror"},
    {"arbalest.AUC", "rocauc auroc rocaucscore"},
    {"arbalest.Prefetch", "dataloader dataset input inputlayer source data"},
    {"arbalest.Train", "sgd adam adamw rmsprop lamb lars muon optimizer optimiser fit"},
    {"arbalest.Validate", "evaluate evaluation test"},
    {"arbalest.Synchronize", "distributeddataparallel dataparallel ddp allreduce horovod"},
    {"arbalest.Augment",
     "normalize randomhorizontalflip randomcrop colorjitter totensor rescaling augmentation transforms"},
    {"arbalest.ResizeCrop", "centercrop decodejpeg decodeimage"},
    {"arbalest.MixImages", "mixup cutmix"},

    {"kernel_shape", "kernel-size kernel pool-size ksize"},
    {"pads", "padding pad"},
    {"group", "groups"},
    {"filters", "out-channels channels"},
    {"units", "out-features features num-classes classes"},
    {"epsilon", "eps"},
    {"ratio", "p rate drop dropout"},
    {"lr", "learning-rate base-lr"},
    {"weight_decay", "wd l2"},
    {"optimizer", "optim solver"},
    {"schedule", "scheduler lr-scheduler lr-schedule lr-policy"},
    {"warmup", "warmup-epochs"},
    {"clip_norm", "max-norm grad-clip clip-grad gradient-clip-val clip-grad-norm"},
    {"accumulate", "accumulate-grad-batches gradient-accumulation-steps grad-accum"},
    {"source", "dataset data data-dir data-path root"},
    {"batch", "batch-size bs per-device-train-batch-size train-batch-size"},
    {"depth", "prefetch-factor"},
    {"strategy", "strategies distributed"},
    // Torchvision's names of augmentation.
    {"area", "scale"},
    {"rotate", "degrees"},
    {"flip", "hflip"},
    {"vertical_flip", "vflip"},

    {"run", "train fit start"},
    {"evaluate", "eval test validate val score metrics"},
    {"predict", "infer inference classify detect"},
    {"export", "convert save onnx"},
    {"check", "summary inspect lint info describe verify"},
    {"view", "show visualize visualise timeline"},
    {"report", "plot compare tensorboard"},
    {"resume", "continue restart"},
    {"ops", "operators layers op list nodes"},
    {"sources", "datasets source dataset loaders"},
    {"init", "new create template templates example examples quickstart"},
    {"bench", "benchmark"},

    {"--save", "--output --out -o --save-model --output-dir --weights-out"},
    {"--weights", "--load --pretrained --ckpt-path --load-weights --model-path --init-weights"},
    {"--devices", "--gpu --gpus --cuda --cpu --accelerator --gpu-ids"},
    {"--threads", "--workers --num-workers -j --jobs --num-threads --cpus"},
    {"--epochs", "--max-epochs --num-epochs --n-epochs --num-train-epochs -e"},
    {"--iterations", "--steps --max-steps --num-steps --max-iter --max-iters --train-steps"},
    {"--checkpoint", "--checkpoint-dir --ckpt-dir --ckpt --checkpoints"},
    {"--precision", "--amp --fp16 --half --bf16 --fp32 --tf32 --mixed-precision --dtype --float16"},
    {"--patience", "--early-stopping --early-stop"},
    {"--tensorboard", "--logdir --log-dir"},
    {"--log", "--log-file --logfile"},
    {"--log-every", "--print-freq --log-interval --log-steps --log-freq"},
    {"--seed", "--random-seed --manual-seed --random-state"},
    {"--metric", "--monitor"},
    {"--save-best", "--save-best-only --save-best-model"},
    {"--class-names", "--names --labels --label-names --classes"},
    {"--top", "--topk --top-k -k"},
    {"--plateau", "--reduce-lr-on-plateau"},
    {"--resume", "--resume-from --auto-resume --continue"},
    {"--learners", "--nproc --nproc-per-node --world-size --replicas"},

    {"folder", "imagefolder images image-folder photos directory dir"},
    {"tar", "webdataset wds shards"},
    {"npy", "numpy npz array arrays"},
    {"tensors", "safetensors tensor"},
    {"synthetic", "random noise fake dummy"},
    {"csv", "table tsv dataframe"},
    {"photos", "resnet resnet18 resnet50 imagenet imagefolder folder"},
    {"cnn", "convnet conv cifar cifar10 vgg cnn2d"},
    {"lenet", "mnist lenet5"},
    {"finetune", "fine-tune finetuning transfer pretrained transfer-learning"},

    {"glyphs", "digits generated toy"},
    {"mnist", "fashionmnist fashion-mnist emnist kmnist"},
    {"cifar10", "cifar cifar-10"},
    {"cifar100", "cifar-100"},
};

// In the table's letters, without a module in front ("nn.Conv2d").
std::string plain(std::string_view name) {
  std::string text(name.substr(name.rfind('.') + 1));
  for (char& c : text) c = c == '_' ? '-' : char(std::tolower(uint8_t(c)));
  return text;
}

// An operator's right name in the wrong domain, or in other letters: "nn.linear" of "arbalest.Linear".
// Names in lower case are also those of parameters, of which "conv1.weight" is not meant by "fc.weight".
bool same_operator(std::string_view name, std::string_view op) {
  const bool both_in_domains = name.find('.') != name.npos && op.find('.') != op.npos;
  name.remove_prefix(name.rfind('.') + 1);
  op.remove_prefix(op.rfind('.') + 1);
  const auto alike = [](char a, char b) { return std::tolower(uint8_t(a)) == std::tolower(uint8_t(b)); };
  return !op.empty() && (std::isupper(uint8_t(op[0])) || !both_in_domains) &&
         std::equal(name.begin(), name.end(), op.begin(), op.end(), alike);
}

bool has_word(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

}  // namespace

std::string own_name(std::string_view name, std::span<const std::string> candidates) {
  for (const std::string& candidate : candidates) {
    if (same_operator(name, candidate)) return candidate;
  }
  const std::string theirs = plain(name);
  if (theirs.empty() || theirs.find(' ') != theirs.npos) return "";
  for (const OwnName& own : kOwnNames) {
    if (!has_word(own.theirs, theirs)) continue;
    const auto found = std::find(candidates.begin(), candidates.end(), own.ours);
    if (found != candidates.end()) return *found;
  }
  return "";
}

}  // namespace arbalest
