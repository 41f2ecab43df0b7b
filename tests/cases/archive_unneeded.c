// A member nobody needs: pulling it in would leave a symbol undefined.
int defined_nowhere(void);
int unneeded(void) { return defined_nowhere(); }
