// The other half of cxx.cpp.
#include "cxx.h"

struct Strip : Shape {
    int area() const override { return larger(6, 4); }
    const char *name() const override { return "strip"; }
};

static const Strip strip;
const Shape *other_shape() { return &strip; }
