// SPDX-License-Identifier: Apache-2.0
#pragma once
// All that a program of one's own needs: models in C++ and graph files, sessions that train them, what trained models
// answer, and what may be added to both (operators, sources, strategies, observers). Headers in the folder `detail`
// belong to these and may change at any time.

#include "base/error.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/version.h"
#include "dsl/dsl.h"
#include "executor/console/console_observer.h"
#include "executor/inference/export_model.h"
#include "executor/inference/inference.h"
#include "executor/inference/predictor.h"
#include "executor/plan/device_list.h"
#include "executor/plan/strategy.h"
#include "executor/session/observer.h"
#include "executor/session/session.h"
#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "io/open/open_source.h"
#include "io/sources/memory_source.h"
#include "io/sources/source.h"
#include "ops/builtin_ops.h"
#include "ops/check/check_operator.h"
