
// nothing but a comment
