// C++ without its runtime library: templates, inline functions in COMDAT groups, virtual calls, a second object that
// brings the same groups.
#include "cxx.h"

// What a freestanding program brings itself.
extern "C" void __cxa_pure_virtual() {
    for (;;)
        ;
}

template <typename T, int N> struct Ring {
    T items[N] = {};
    int at = 0;
    void push(T value) { items[at++ % N] = value; }
    T sum() const {
        T total = 0;
        for (const T &item : items)
            total += item;
        return total;
    }
};

struct Square : Shape {
    int side;
    constexpr explicit Square(int s) : side(s) {}
    int area() const override { return side * side; }
    const char *name() const override { return "square"; }
};

int main() {
    Ring<int, 4> ring;
    const Square square(5);
    const Shape *const shapes[] = {&square, other_shape()};
    for (const Shape *shape : shapes) {
        puts(shape->name());
        ring.push(shape->area());
    }
    ring.push(larger(3, 2));
    return ring.sum() + calls_of_larger();
}
