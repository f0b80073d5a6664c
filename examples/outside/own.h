// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operator, source, metric and strategy that this program adds to the library.

void register_square();      // the operator "own.Square" and its gradient: square.cpp
void register_rings();       // the source "rings:", points on two rings around the origin: rings.cpp
void register_confidence();  // the metric "own.Confidence", the mean probability of the right class: confidence.cpp
void register_elastic();     // the strategy "elastic", by which learners are drawn to their mean: elastic.cpp
