// Thread-local storage of another object.
extern __thread long zeroed[100];
__thread int other = -3;
static __thread int own;

int next(void) {
    zeroed[0] += 1;
    return other++ + own++ + 5 + (int)zeroed[0];
}
