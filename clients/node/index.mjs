import redrive from './index.js';

export const worker = redrive.worker;
export const backoffStrategy = redrive.backoffStrategy;
export default redrive;
