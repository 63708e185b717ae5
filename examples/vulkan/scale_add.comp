#version 450
// SPDX-License-Identifier: Apache-2.0
// result[i] = factor * left[i] + right[i]
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer Left { uint left[]; };
layout(std430, binding = 1) readonly buffer Right { uint right[]; };
layout(std430, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Constants {
  uint count;
  uint factor;
};
void main() {
  uint i = gl_GlobalInvocationID.x;
  if (i < count) result[i] = factor * left[i] + right[i];
}
