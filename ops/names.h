// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of the operators that the rooms above look for and make, and places of operands. The operators of a file that
// has a header of its own name theirs there: `struct GemmInput`.

#include <cstddef>
#include <string_view>

#include "graph/names.h"

namespace arbalest {

// ONNX's operators of two inputs, such as Add and MatMul, and kernels that take two whatever they are.
struct BinaryInput {
  enum : size_t { A, B };
};
// Gradients that take what an operator of one input read, or what it made: arbalest.LRNGrad, arbalest.ReluGrad.
struct GradByInput {
  enum : size_t { dY, X };
};
struct GradByOutput {
  enum : size_t { dY, Y };
};
// Metrics of scores and labels, and the weight of samples that NAME_weight stands for (graph/metric.h).
struct MetricInput {
  enum : size_t { Scores, Labels };
};
struct MetricOutput {
  enum : size_t { Mean, Weight };
};

// Conv, arbalest.ConvRelu, ConvTranspose and arbalest.ConvTransposed, and arbalest.ConvStatistics without B.
struct ConvInput {
  enum : size_t { X, W, B };
};
struct ConvGradInputInput {  // arbalest.ConvGradInput, which does not read X
  enum : size_t { dY, W, X };
};
struct ConvGradWeightInput {  // arbalest.ConvGradWeight, which does not read W
  enum : size_t { X, dY, W };
};
struct WhereInput {
  enum : size_t { Condition, X, Y };
};
struct WhereGradInput {
  enum : size_t { Condition, dY };
};
struct OneHotInput {
  enum : size_t { Indices, Depth, Values };
};
struct OnnxAttentionInput {  // Attention, not arbalest.Attention
  enum : size_t { Q, K, V, Mask, PastKey, PastValue, Lengths };
};
struct AccumulateInput {
  enum : size_t { Gradients, Sum };
};

namespace op {

// ONNX's operators.
inline constexpr std::string_view Add = "Add", AffineGrid = "AffineGrid", AveragePool = "AveragePool",
                                  BatchNormalization = "BatchNormalization", Bernoulli = "Bernoulli",
                                  CastLike = "CastLike", Clip = "Clip", Concat = "Concat", Conv = "Conv", DFT = "DFT",
                                  Div = "Div", Dropout = "Dropout", Exp = "Exp", Floor = "Floor", Gather = "Gather",
                                  GatherND = "GatherND", Gelu = "Gelu", Gemm = "Gemm",
                                  GlobalAveragePool = "GlobalAveragePool", Greater = "Greater",
                                  GreaterOrEqual = "GreaterOrEqual", GridSample = "GridSample",
                                  GroupNormalization = "GroupNormalization", HardSigmoid = "HardSigmoid",
                                  HardSwish = "HardSwish", IsNaN = "IsNaN", LayerNormalization = "LayerNormalization",
                                  Less = "Less", LessOrEqual = "LessOrEqual", Log = "Log", LogSoftmax = "LogSoftmax",
                                  MatMul = "MatMul", MaxPool = "MaxPool", Mul = "Mul", Neg = "Neg", Not = "Not",
                                  OneHot = "OneHot", OnnxAttention = "Attention", Pad = "Pad",
                                  RMSNormalization = "RMSNormalization", RandomNormalLike = "RandomNormalLike",
                                  RandomUniform = "RandomUniform", RandomUniformLike = "RandomUniformLike",
                                  Reciprocal = "Reciprocal", ReduceMax = "ReduceMax", ReduceMean = "ReduceMean",
                                  ReduceMin = "ReduceMin", Relu = "Relu", Resize = "Resize",
                                  RotaryEmbedding = "RotaryEmbedding", Scatter = "Scatter",
                                  ScatterElements = "ScatterElements", ScatterND = "ScatterND", Sigmoid = "Sigmoid",
                                  Slice = "Slice", Softmax = "Softmax", Softplus = "Softplus", Split = "Split",
                                  Sqrt = "Sqrt", Squeeze = "Squeeze", Sub = "Sub", Sum = "Sum", Swish = "Swish",
                                  Tile = "Tile", TopK = "TopK", Unsqueeze = "Unsqueeze", Upsample = "Upsample",
                                  Where = "Where";

// The library's own.
inline constexpr std::string_view
    AUC = "arbalest.AUC",
    Accumulate = "arbalest.Accumulate", Accuracy = "arbalest.Accuracy", AllReduce = "arbalest.AllReduce",
    Assemble = "arbalest.Assemble", Attention = "arbalest.Attention", Augment = "arbalest.Augment",
    BatchMatMul = "arbalest.BatchMatMul", BatchNorm = "arbalest.BatchNorm", BatchNormGrad = "arbalest.BatchNormGrad",
    BatchNormInference = "arbalest.BatchNormInference", BatchNormPairGrad = "arbalest.BatchNormPairGrad",
    BatchNormPairTraining = "arbalest.BatchNormPairTraining", BatchNormPartsGrad = "arbalest.BatchNormPartsGrad",
    BatchNormPartsInference = "arbalest.BatchNormPartsInference",
    BatchNormPartsTraining = "arbalest.BatchNormPartsTraining", BatchNormStatistics = "arbalest.BatchNormStatistics",
    BatchNormTraining = "arbalest.BatchNormTraining", BatchWeight = "arbalest.BatchWeight",
    CastToNearest = "arbalest.CastToNearest", ChannelStatistics = "arbalest.ChannelStatistics",
    ChannelSum = "arbalest.ChannelSum", ClassToken = "arbalest.ClassToken", ClearGaps = "arbalest.ClearGaps",
    ClipFactor = "arbalest.ClipFactor", Combine = "arbalest.Combine", ConvGradInput = "arbalest.ConvGradInput",
    ConvGradInputSums = "arbalest.ConvGradInputSums", ConvLayer = "arbalest.Conv", ConvRelu = "arbalest.ConvRelu",
    ConvStatistics = "arbalest.ConvStatistics", Embedding = "arbalest.Embedding", F1 = "arbalest.F1",
    FlattenInPlace = "arbalest.FlattenInPlace", GemmGradB = "arbalest.GemmGradB", GemmSum = "arbalest.GemmSum",
    Interleave = "arbalest.Interleave", KeepRows = "arbalest.KeepRows", KeepStatistics = "arbalest.KeepStatistics",
    L1Loss = "arbalest.L1Loss", LayerNorm = "arbalest.LayerNorm", LayerScale = "arbalest.LayerScale",
    Linear = "arbalest.Linear", MaxPoolGrad = "arbalest.MaxPoolGrad", MaxPoolTaps = "arbalest.MaxPoolTaps",
    MaxPoolTapsGrad = "arbalest.MaxPoolTapsGrad", MeanSquaredError = "arbalest.MeanSquaredError",
    MergeStatistics = "arbalest.MergeStatistics", MixImages = "arbalest.MixImages", MixLabels = "arbalest.MixLabels",
    MovingAverage = "arbalest.MovingAverage", Normalize = "arbalest.Normalize",
    NormalizeGrad = "arbalest.NormalizeGrad", NormalizeSamples = "arbalest.NormalizeSamples",
    PackedAttention = "arbalest.PackedAttention", PositionEmbedding = "arbalest.PositionEmbedding",
    Precision = "arbalest.Precision", Prefetch = "arbalest.Prefetch", RandomResizedCrop = "arbalest.RandomResizedCrop",
    Recall = "arbalest.Recall", Region = "arbalest.Region", ReluGrad = "arbalest.ReluGrad",
    ReluGradSums = "arbalest.ReluGradSums", ResizeCrop = "arbalest.ResizeCrop",
    RestoreStatistics = "arbalest.RestoreStatistics", SigmoidCrossEntropy = "arbalest.SigmoidCrossEntropy",
    SliceGrad = "arbalest.SliceGrad", SoftmaxCrossEntropy = "arbalest.SoftmaxCrossEntropy",
    StochasticDepth = "arbalest.StochasticDepth", StopGradient = "arbalest.StopGradient", SumTo = "arbalest.SumTo",
    Synchronize = "arbalest.Synchronize", TakeSamples = "arbalest.TakeSamples", Tally = "arbalest.Tally",
    Train = "arbalest.Train", TransposeInPlace = "arbalest.TransposeInPlace",
    UnflattenInPlace = "arbalest.UnflattenInPlace", Validate = "arbalest.Validate";

}  // namespace op
}  // namespace arbalest
